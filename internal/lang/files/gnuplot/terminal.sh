# Prints the commands that gnuplot begins with: sh terminal.sh SCRIPT [GATE]

[ -n "$2" ] && cat "$2" >/dev/null

# A terminal that is set in a comment is none. Text that is no comment may
# hold a # in quotes, as a color does. Keywords can be shortened: se te.
if sed -e "s/[\"']#[^\"']*[\"']//g" -e 's/#.*//' "$1" |
	grep -Eq '(^|[^[:alnum:]_])set?[[:space:]]+te(r(m(i(n(al?)?)?)?)?)?([^[:alnum:]_]|$)'; then
	exit
fi
cat <<'END'
if (strstrt(GPVAL_TERMINALS, ' pngcairo ')) {
	set terminal pngcairo
} else {
	if (strstrt(GPVAL_TERMINALS, ' png ')) { set terminal png }
}
set output '/sandbox/output/plot.png'
END
