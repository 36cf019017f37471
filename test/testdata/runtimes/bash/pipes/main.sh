# The words that a text uses most, and the sizes of a table's groups.
tr -cs '[:alpha:]' '\n' <input/poem.txt | tr '[:upper:]' '[:lower:]' | sort | uniq -c | sort -k1,1nr -k2 | head -n 3 |
	awk '{ print $2, $1 }'
awk -F, 'NR > 1 { sum[$1] += $3; n[$1]++ } END { for (k in sum) printf "%s %d %.2f\n", k, n[k], sum[k] / n[k] }' \
	input/tables/rivers.csv | sort
sed -n 's/^river,\([^,]*\),.*/\1/p' input/tables/rivers.csv | paste -sd+ | sed 's/^/names: /'
