library(ggplot2)

p <- ggplot(mtcars, aes(wt, mpg, colour = factor(cyl))) +
  geom_point() +
  geom_smooth(method = "lm", formula = y ~ x, se = FALSE) +
  facet_wrap(~gear) +
  labs(title = "Fuel and weight", x = "weight", colour = "cylinders")
ggsave("output/cars.png", p, width = 6, height = 4, dpi = 100)
ggsave("output/cars.pdf", p, width = 6, height = 4)
ggsave("output/bars.svg", ggplot(mpg, aes(class)) + geom_bar(), device = grDevices::svg, width = 5, height = 3)
print(class(p))
print(layer_data(p, 1)$y[1:3])
grid::grid.ls(ggplotGrob(p)$grobs[[1]])
