x = fgetl (stdin)
y = str2num (fgetl (stdin));
printf ("%d\n", sum (y));
disp (feof (stdin)); disp (fgetl (stdin)); disp (argv ()); disp (getenv ("BELLJAR_GATE")); who
atexit ("bye");
function bye ()
  disp ("bye");
end
fprintf (stderr, "to stderr\n");
exit (4);
