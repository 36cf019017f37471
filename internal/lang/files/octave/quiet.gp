# What Octave sends is meant for an older gnuplot, and version 6 remarks on it at
# every plot. Errors are still told.
if (GPVAL_VERSION >= 6) unset warnings
load '/dev/stdin'
