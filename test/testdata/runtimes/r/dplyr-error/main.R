suppressPackageStartupMessages(library(dplyr))

d <- tibble(a = 1:3)
d |>
  filter(a > 1) |>
  mutate(b = nothing * 2)
