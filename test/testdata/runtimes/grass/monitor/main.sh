# A script that starts a monitor draws on that.
set -e
g.region n=100 s=0 e=200 w=0 res=1
r.mapcalc "waves = sin(row() * 5) + cos(col() * 5)" --quiet
r.info -r waves | sort
d.mon start=cairo output=output/waves.png width=300 height=200 --quiet
d.rast waves --quiet
d.mon stop=cairo --quiet
d.mon start=png output=output/plain.png width=200 height=100 --quiet
d.rast waves --quiet
