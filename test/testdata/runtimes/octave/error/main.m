1;
function r = check (v)
  if (v > 2)
    error ("Check:big", "too big: %d", v);
  end
  r = v;
end

try
  check (3);
catch e
  printf ("handled %s, %s\n", e.identifier, e.message);
end
warning ("a warning");
disp (check (2));
check (5);
disp ("not reached");
