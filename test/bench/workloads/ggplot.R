library(ggplot2)

set.seed(1)
t <- seq(0, 10, length.out = 500)
d <- data.frame(t = rep(t, 2), wave = rep(c("sine", "cosine"), each = 500))
d$measured <- ifelse(d$wave == "sine", sin(d$t), cos(d$t)) + rnorm(1000, sd = 0.3)

p <- ggplot(d, aes(t, measured, colour = wave)) +
  geom_point(size = 0.5) +
  labs(title = "Noisy waves", x = "time") +
  theme_minimal()
ggsave("plot.png", p, width = 6, height = 4, dpi = 100)
