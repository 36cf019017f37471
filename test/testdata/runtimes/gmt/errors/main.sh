# A modern module outside of a session, a wrong option, data that is not there.
gmt coast -R0/10/0/10 -JM3c -W >&2 || echo "first: $?"
gmt begin nothing png
gmt basemap -R0/10/0 -JM3c -B || echo "second: $?"
gmt plot -R0/1/0/1 -JX3c -Sc1c input/none.txt
exit $?
