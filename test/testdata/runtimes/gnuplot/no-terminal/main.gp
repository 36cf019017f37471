# set terminal qt
set title "A script that sets no terminal"
set style line 1 lc rgb "#dd8800" lw 2
plot sin(x) ls 1, cos(x)
pause -1 "Press return"
