cat >output/report.txt <<END
home: $HOME
sum: $((6 * 7))
END
cat <<'END'
not expanded: $HOME
END
(exit 3)
echo "a subshell ended with $?"
mkdir -p output/a/b
printf 'x%.0s' {1..10} >output/a/b/ten
nothing-of-this-name
echo "a missing command ended with $?"
exit 42
