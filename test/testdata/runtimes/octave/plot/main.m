% Plots without a display, in the usual ways to print them.
x = linspace (0, 2*pi, 200);
plot (x, sin (x), "r-", x, cos (x), "b--", "linewidth", 2);
title ("Waves"); xlabel ("x"); legend ("sin", "cos"); grid on;
print -dpng output/waves.png
print ("output/waves.pdf");
figure (2);
subplot (1, 2, 1); bar ([3 1 2]);
subplot (1, 2, 2); hist ([1 1 2 3 3 3]);
print ("-dpng", "-S500,300", "output/bars.png");
figure;
surf (peaks (25)); colormap (jet); colorbar;
saveas (gcf, "output/surf.jpg");
contourf (peaks (25));
print -dsvg output/contour.svg
disp (get (0, "children")' > 0); disp (graphics_toolkit ());
