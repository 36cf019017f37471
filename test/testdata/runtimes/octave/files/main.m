data = csvread ("input/table.csv", 1, 0);
printf ("%d rows, mean %.3f\n", rows (data), mean (data(:, 2)));
dlmwrite ("output/scaled.csv", data * 2, ",");
save -text output/v.txt data
load output/v.txt
disp (size (data));
fid = fopen ("output/report.txt", "w");
fprintf (fid, "%d -> %.2f\n", data');
fclose (fid);
disp (fileread ("output/report.txt"));
img = uint8 (repmat (linspace (0, 255, 64), 32, 1));
imwrite (img, "output/ramp.png");
disp (size (imread ("output/ramp.png")));
x = jsondecode ('{"a": [1, 2, 3], "b": "text"}');
disp (sum (x.a)); disp (jsonencode (x));
