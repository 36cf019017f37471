# Runs a gnuplot script: sh run.sh SCRIPT
#
# A script that sets no terminal would draw on nothing. It gets pictures:
# plot.png, plot-2.png and so on, one a plot. All others run as they do bare.

here=${0%/*}
gate=${BELLJAR_GATE-} # gnuplot itself cannot take it out of its environment
unset BELLJAR_GATE

# The commands before the script come from a pipe, since that is the one way
# that leaves no variable behind: system() would change GPVAL_SYSTEM_ERRMSG.
gnuplot ${gate:+"$here/warm.gp"} -e "load '< sh $here/terminal.sh $1 $gate'" "$1"
status=$?

plot=/sandbox/output/plot.png
if [ ! -s $plot ]; then
	# The script drew nothing, or to outputs of its own.
	[ -f $plot ] && rm $plot
	exit $status
fi

# Plots to one output stand in it one after the other, and viewers show the
# first. A PNG ends with the chunk IEND and its checksum.
LC_ALL=C
export LC_ALL
end=$(printf 'IEND\256B`\202')
start=0 n=0
for at in $(grep -abo "$end" $plot | cut -d: -f1); do
	n=$((n + 1))
	stop=$((at + 8))
	if [ $n -gt 1 ]; then
		tail -c +$((start + 1)) $plot | head -c $((stop - start)) >"${plot%.png}-$n.png"
	else
		first=$stop
	fi
	start=$stop
done
[ $n -gt 1 ] && truncate -s $first $plot
exit $status
