## Belljar's start of Octave, in the place of its version's start-up file. Without
## a display, figures are not shown, and gnuplot draws what is printed.
##
## With BELLJAR_GATE set, Octave waits for the script, having read the functions
## that scripts usually call. It has drawn nothing then: a script that prints a
## handle, as "h = plot (x)" does, is to find the number that it always has.

function belljar_start__ ()
  gate = getenv ("BELLJAR_GATE");
  here = fileparts (getenv ("OCTAVE_VERSION_INITFILE"));
  unsetenv ("BELLJAR_GATE");
  unsetenv ("OCTAVE_VERSION_INITFILE");
  own = fullfile (__octave_config_info__ ("startupfiledir"), "octaverc");
  if (exist (own, "file"))
    evalin ("base", sprintf ("source ('%s');", own));
  endif
  ## Octave advises against gnuplot when it begins to use it. There is no other
  ## choice; and a script may turn all warnings on.
  state = warning ("off", "Octave:gnuplot-graphics");
  graphics_toolkit ("gnuplot");
  warning (state);
  gnuplot_binary ("gnuplot", fullfile (here, "quiet.gp"));
  set (0, "defaultfigurevisible", "off");
  if (! isempty (gate))
    belljar_read__ ();
    belljar_wait__ (gate);
  endif
endfunction

function belljar_read__ ()
  names = {"accumarray", "axes", "axis", "bar", "close", "colorbar", "colormap", "contour", "contourf", "cross", ...
           "datestr", "errorbar", "figure", "fliplr", "fminsearch", "fzero", "gca", "gcf", "grid", "hist", "hold", ...
           "imagesc", "int2str", "integral", "interp1", "ismember", "legend", "linspace", "loglog", "mat2str", ...
           "mean", "median", "mesh", "meshgrid", "mode", "newplot", "num2str", "ode45", "odeset", "pcolor", "plot", ...
           "plot3", "polyfit", "polyval", "print", "quadgk", "quiver", "repmat", "saveas", "scatter", "semilogx", ...
           "semilogy", "setdiff", "std", "strjoin", "strsplit", "strtrim", "subplot", "surf", "text", "title", ...
           "trapz", "unique", "var", "view", "xlabel", "xlim", "ylabel", "ylim", "zlabel", "__gnuplot_drawnow__"};
  for i = 1:numel (names)
    try
      nargin (names{i});
    end_try_catch
  endfor
  try
    listfonts ();
    containers.Map ();
    inputParser ();
  end_try_catch
endfunction

function belljar_wait__ (gate)
  f = fopen (gate, "r");
  fread (f);
  fclose (f);
  ## Numbers that another start would have as well.
  for generator = {@rand, @randn, @rande, @randg, @randp}
    generator{1} ("twister", "reset");
  endfor
  lasterr ("");
  lastwarn ("");
endfunction

belljar_start__ ();
clear -f belljar_start__ belljar_read__ belljar_wait__
