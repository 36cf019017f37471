% Belljar's start of Octave, in the place of its version's start-up file. Without
% a display, figures are not shown, and gnuplot draws what is printed. With
% BELLJAR_GATE set, Octave waits for the script, having drawn before.

function belljar_start ()
  gate = getenv ("BELLJAR_GATE");
  unsetenv ("BELLJAR_GATE");
  unsetenv ("OCTAVE_VERSION_INITFILE");
  own = fullfile (OCTAVE_HOME (), "share", "octave", OCTAVE_VERSION (), "m", "startup", "octaverc");
  if (exist (own, "file"))
    evalin ("base", sprintf ("source ('%s');", own));
  endif
  warning ("off", "Octave:gnuplot-graphics");
  set (0, "defaultfigurevisible", "off");
  gnuplot_binary ("/usr/libexec/belljar/octave/gnuplot.sh");
  if (! isempty (gate))
    belljar_wait (gate);
  endif
endfunction

function belljar_wait (gate)
  file = [tempname() ".png"];
  try
    figure ();
    plot ([1 2]);
    title ("a");
    print ("-dpng", file);
  end_try_catch
  close ("all");
  unlink (file);
  f = fopen (gate, "r");
  fread (f);
  fclose (f);
  % Numbers that another start would have as well.
  for generator = {@rand, @randn, @rande, @randg, @randp}
    generator{1} ("twister", "reset");
  endfor
  lasterr ("");
  lastwarn ("");
endfunction

belljar_start ();
clear -f belljar_start belljar_wait
