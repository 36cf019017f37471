% What is drawn for the first time, and what a script finds before that.
who
disp (get (0, "children")); disp (getenv ("OCTAVE_VERSION_INITFILE"));
[message, id] = lastwarn ()
message = lasterr ()
warning on Octave:gnuplot-graphics
h = plot (1:3)
l = xlabel ("x")
f = figure
a = axes
t = text (0.5, 0.5, "t")
area ([1 3 2]); hold on; plot ([2 1 3], "o-"); legend ("area", "line");
print ("-dpng", "-r100", "output/area.png");
set (1, "paperunits", "inches", "paperposition", [0 0 4 3]);
print (1, "-dpng", "-r100", "output/line.png");
printf ("%d figures\n", numel (get (0, "children")));
