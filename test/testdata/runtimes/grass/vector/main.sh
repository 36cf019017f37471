# grass: EPSG:25832
set -e
v.in.ogr input=input/fields.geojson output=fields --quiet
v.info -t fields | grep -E '^(areas|points|map3d)='
v.db.select fields columns=name,crop separator=comma
v.to.db -p map=fields option=area columns=area units=hectares --quiet | sort
v.in.ascii input=input/trees.csv output=trees separator=comma skip=1 x=1 y=2 \
	columns='x integer, y integer, name varchar(10)' --quiet
v.select ainput=trees binput=fields operator=within output=inside --quiet
echo "inside: $(v.db.select -c inside columns=name | paste -sd,)"
g.region vector=fields res=10
v.to.rast input=fields output=fields use=cat --quiet
r.stats -cn fields --quiet
v.out.ogr input=inside output=output/inside.geojson format=GeoJSON --quiet
GRASS_RENDER_FILE=output/fields.png GRASS_RENDER_WIDTH=400 GRASS_RENDER_HEIGHT=300 d.vect fields fill_color=green --quiet
