"""Heights along a slope, in Python."""

import sys

import grass.script as gs
from grass.pygrass.raster import RasterRow

gs.run_command("g.region", n=50, s=0, e=100, w=0, res=10)
gs.mapcalc("slope = row() * 2.0 + col()")
stats = gs.parse_command("r.univar", map="slope", flags="g")
print("cells", stats["cells"], "mean", stats["mean"])
with RasterRow("slope") as raster:
    print("corner", raster[0][0])
gs.run_command("r.slope.aspect", elevation="slope", slope="angle", quiet=True)
print("angle", round(float(gs.parse_command("r.univar", map="angle", flags="g")["mean"]), 3))
gs.write_command("v.in.ascii", input="-", output="points", separator="comma", stdin="5,5\n55,25\n95,45\n", quiet=True)
print(gs.read_command("v.what.rast", map="points", raster="slope", flags="p", quiet=True).strip())
print("project", gs.gisenv()["LOCATION_NAME"], "script", sys.argv, __name__)
gs.run_command("d.rast", map="slope", quiet=True)
gs.run_command("r.info", map="nothing")
