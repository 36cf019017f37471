# A child in the background holds the output open and does not hold the run.
sleep 1000 &
n=0
while read -r name value; do
	n=$((n + value))
	last=$name
done
echo "$last $n"
