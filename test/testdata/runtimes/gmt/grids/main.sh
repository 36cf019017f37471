set -e
# Distances on the sphere and a grid's mathematics.
echo "2.35 48.86" | gmt mapproject -G13.40/52.52+uk --FORMAT_FLOAT_OUT=%.1f
gmt grdmath -R0/10/0/5 -I0.5 X Y MUL = output/product.nc
gmt grdinfo -C output/product.nc | cut -f2-11
gmt grdmath output/product.nc MEAN = mean.nc
gmt grd2xyz mean.nc | head -n 1 | cut -f3
rm mean.nc
# A surface through points, and a line through others.
gmt surface input/points.xyz -R0/4/0/4 -I1 -Goutput/surface.nc -T0.25
echo "2 2" | gmt grdtrack -Goutput/surface.nc --FORMAT_FLOAT_OUT=%.2f
gmt trend1d -Np1 -Fp input/line.txt --FORMAT_FLOAT_OUT=%.3f
gmt begin output/relief png
	gmt makecpt -Cbatlow -T0/50
	gmt grdimage output/product.nc -JX10c/5c -Baf
	gmt grdcontour output/product.nc -C10
	gmt colorbar -DJMR -Baf
gmt end
