"""Vectors: GeoPandas, Shapely, pyproj; a map."""
import geopandas as gpd
import matplotlib.pyplot as plt
from pyproj import CRS, Geod, Transformer
from shapely.geometry import Point, Polygon

cities = gpd.read_file("input/cities.geojson")
print(cities.crs.to_epsg(), list(cities.name))
metres = cities.to_crs(32632)
print("%.0f %.0f" % (metres.geometry.iloc[0].x, metres.geometry.iloc[0].y))
near = gpd.GeoDataFrame({"area": ["ring"]}, geometry=[Point(691000, 5334000).buffer(60000)], crs=32632)
joined = gpd.sjoin(metres, near, predicate="within")
print("within", sorted(joined.name), round(near.area.iloc[0] / 1e6))
near.to_crs(4326).to_file("output/ring.geojson", driver="GeoJSON")
joined.drop(columns="index_right").to_file("output/near.gpkg", layer="near")
print(len(gpd.read_file("output/near.gpkg")))
x, y = Transformer.from_crs("EPSG:4326", "EPSG:3857", always_xy=True).transform(11.575, 48.137)
print("%.1f %.1f" % (x, y), CRS(25832).name)
print("distance %.0f" % Geod(ellps="WGS84").inv(11.575, 48.137, 13.405, 52.52)[2])
print(Polygon([(0, 0), (4, 0), (4, 3)]).intersection(Polygon([(0, 3), (4, 0), (0, 0)])).area)
ax = near.plot(color="lightblue", edgecolor="black", figsize=(4, 4))
metres.plot(ax=ax, color="red", markersize=20)
for city in metres.itertuples():
    ax.annotate(city.name, (city.geometry.x, city.geometry.y))
plt.savefig("output/map.png", dpi=100)
