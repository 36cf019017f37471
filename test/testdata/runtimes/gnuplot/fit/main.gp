f(x) = a * x + b
set fit quiet nolog
fit f(x) "input/points.dat" using 1:2 via a, b
stats "input/points.dat" using 2 nooutput
print sprintf("slope %.4f intercept %.4f", a, b)
print sprintf("mean %.3f of %d", STATS_mean, STATS_records)
set print "output/result.txt"
print a
print a > 2 ? "steep" : "flat"
set print "-"
print "to stdout"
exit status 3
