set -e
gmt set FONT_TITLE 14p MAP_FRAME_TYPE plain
gmt gmtset PS_MEDIA a4
ps=iceland.ps
gmt pscoast -R-25/-13/63/67 -JM14c -Baf -BWSen+tIceland -Gdarkseagreen -Swhite -W0.3p -Dh -K -P >$ps
echo "-19 65" | gmt psxy -R -J -Sa0.6c -Gred -K -O >>$ps
echo "-19 65.3 middle" | gmt pstext -R -J -F+f10p -O >>$ps
gmt psconvert $ps -A -Tf -Foutput/iceland
gmt psconvert $ps -A -Tg -E72 -Foutput/iceland
