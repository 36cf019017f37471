# Starts the terminal that scripts use most: fonts are found at its first
# picture. An empty one sets no variable, and replot still has nothing to
# repeat. The pop restores the terminal that gnuplot began with.
set terminal push
if (strstrt(GPVAL_TERMINALS, ' pngcairo ')) { set terminal pngcairo }
set output '/dev/null'
clear
set output
set terminal pop
