"""Rasters: rasterio writes, reads, warps and masks a GeoTIFF."""
import numpy as np
import rasterio
from rasterio import features, mask
from rasterio.transform import from_origin
from rasterio.warp import Resampling, calculate_default_transform, reproject

y, x = np.mgrid[0:100, 0:150]
height = (500 + 300 * np.sin(x / 20) * np.cos(y / 15)).astype("float32")
profile = dict(driver="GTiff", height=100, width=150, count=1, dtype="float32", crs="EPSG:32632",
               transform=from_origin(600000, 5300000, 30, 30), nodata=-9999, compress="deflate")
with rasterio.open("output/height.tif", "w", **profile) as out:
    out.write(height, 1)
with rasterio.open("output/height.tif") as src:
    print(src.width, src.height, src.crs.to_epsg(), src.bounds)
    print("%.3f %.3f" % (src.read(1).min(), src.read(1).max()))
    print("at %.2f" % next(src.sample([(601500, 5299000)]))[0])
    transform, width, height = calculate_default_transform(src.crs, "EPSG:4326", src.width, src.height, *src.bounds)
    warped = np.full((height, width), -9999, "float32")
    reproject(rasterio.band(src, 1), warped, dst_transform=transform, dst_crs="EPSG:4326", dst_nodata=-9999, resampling=Resampling.bilinear)
    print(width, height, "mean %.1f" % warped[warped > -9999].mean())
    cut, _ = mask.mask(src, [{"type": "Polygon", "coordinates": [[(600300, 5299700), (601500, 5299700), (601500, 5298500), (600300, 5299700)]]}], crop=True)
    print(cut.shape, int((cut > -9999).sum()))
high = 500 + 300 * np.sin(x / 20) * np.cos(y / 15) > 700
print(sum(1 for _ in features.shapes(high.astype("uint8"), mask=high)), "peaks")
