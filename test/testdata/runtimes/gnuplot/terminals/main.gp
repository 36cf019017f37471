set terminal pngcairo size 800,300 font "DejaVu Sans,11"
set output "output/heat.png"
set palette defined (0 "navy", 1 "white", 2 "red")
set view map
splot "input/grid.dat" matrix with image title ""
set terminal pdfcairo size 4in,3in
set output "output/lines.pdf"
set title "Growth"
set xlabel "Day"
set datafile separator ","
plot "input/growth.csv" using 1:2 with linespoints title "measured"
set terminal svg size 320,240
set output "output/curve.svg"
unset xlabel
plot [0:10] exp(-x) title "decay"
set terminal dumb 40,12
set output "output/curve.txt"
replot
