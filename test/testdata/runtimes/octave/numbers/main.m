A = [4 -2; 1 1];
[V, D] = eig (A);
disp (sort (diag (D))');
x = A \ [2; 3]
p = polyfit (1:5, [2.2 4.1 6.2 7.9 10.1], 1)
[t, y] = ode45 (@(t, y) -y, [0 1], 1);
printf ("ode %.5f\n", y(end));
printf ("root %.8f\n", fzero (@cos, [1 2]));
printf ("integral %.8f\n", quadgk (@(x) exp (-x.^2), -Inf, Inf));
[xmin, fmin] = fminsearch (@(v) (v(1) - 1)^2 + (v(2) + 2)^2, [0 0]);
printf ("minimum %.3f %.3f\n", xmin);
f = abs (fft (sin (2*pi*5*(0:99)/100)));
[~, k] = max (f(1:50)); printf ("peak %d\n", k - 1);
printf ("spline %.6f\n", interp1 (0:0.5:3, sin (0:0.5:3), 1.25, "spline"));
rand ("twister", 5); a = rand (1, 2); rand ("twister", 5); disp (isequal (a, rand (1, 2)));
s.name = "struct"; s.list = {1, "two"}; s
bitand (12, 10), strsplit ("a,b", ","), regexprep ("abc", "b", "X"), num2str (pi, 8)
