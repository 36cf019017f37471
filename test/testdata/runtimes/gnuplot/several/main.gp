set multiplot layout 1,2
plot sin(x)
plot cos(x)
unset multiplot
splot x**2 - y**2 with lines
set output "output/own.png"
replot
