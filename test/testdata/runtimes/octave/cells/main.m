% Answers to questions, and the kinds of values that are printed otherwise than
% matrices.
name = input ("name? ", "s");
n = input ("n? ");
printf ("\n%s: %d\n", name, 2 * n);
c = {1, "two"; [3 4], {@sin, true}}
s = struct ("a", {1, 2}); s(2)
m = containers.Map ({"x", "y"}, [1 2]);
for k = keys (m)
  printf ("%s=%d ", k{1}, m(k{1}));
end
printf ("\n%5.2f|%-6s|%+d|%e\n", pi, "ab", 7, 12345.678);
z = 3 + 4i, b = true, e = [], u = uint8 (200) + 100, r = 1:0
fprintf ("%d %d\n", magic (3)(1:2, :)');
cellfun (@numel, {"a", "bcd"; "", "ef"})
arrayfun (@(x) sprintf ("<%d>", x), 1:3, "uniformoutput", false)
x = int32 (7) / int32 (2)
fieldnames (s)'
