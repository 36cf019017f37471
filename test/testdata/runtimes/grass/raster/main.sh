#!/bin/bash
# grass: EPSG:4326
set -e
r.in.gdal input=input/heights.asc output=heights --quiet
g.region raster=heights
g.region -g | grep -E '^(n|w|rows|cols)='
r.mapcalc "steps = int(heights / 100)" --quiet
r.univar -g heights | grep -E '^(n|min|max|mean)='
r.stats -cn steps --quiet
r.out.gdal -c input=steps output=output/steps.tif type=Int16 createopt=COMPRESS=LZW --quiet
r.colors map=heights color=elevation --quiet
r.out.png input=heights output=output/heights.png --quiet
# Display commands draw on one picture, map.png.
d.rast heights --quiet
d.grid size=1 color=black
d.text text="Heights" size=8 color=black at=5,90
