#!/bin/sh
# gnuplot as Octave wants it: without what version 6 says of a command that
# Octave sends with every plot.
exec 3>&1
gnuplot "$@" 2>&1 >&3 3>&- | awk '
	/^$/ { blank++; next }
	/> set style increment default;$/ { blank = 0; skip = 3 }
	skip > 0 { skip--; next }
	{ while (blank > 0) { print ""; blank-- }; print; fflush() }
' >&2 3>&-
