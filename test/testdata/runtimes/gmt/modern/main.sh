gmt begin output/europe png,pdf
	gmt coast -R-10/30/35/60 -JM12c -Baf -B+t"Europe" -Gtan -Slightblue -W0.3p -N1/0.3p,gray -Dl
	gmt plot -Sc0.25c -Gred -W0.5p input/cities.txt
	gmt text -F+f9p+jLM -D0.2c/0 input/cities.txt
gmt end show
# A figure without a directory stands in the working directory.
gmt begin france png E100
	gmt coast -RFR+r1 -JM8c -B -EFR+gpalegreen+p0.5p -Di
gmt end
