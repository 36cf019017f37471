# grass: EPSG:999999
g.region -p
