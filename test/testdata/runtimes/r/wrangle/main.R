library(dplyr)
library(tidyr)

visits <- read.csv("input/visits.csv")
totals <- visits |>
  filter(!is.na(visits)) |>
  group_by(site) |>
  summarise(days = n(), total = sum(visits)) |>
  arrange(desc(total))
print(totals)
wide <- visits |> select(-id) |> pivot_wider(names_from = day, values_from = visits)
wide
joined <- left_join(wide, tibble(site = c("north", "south"), head = c("Ada", "Bo")), by = "site")
joined |> mutate(share = round(mon / sum(mon), 2)) |> write.csv("output/joined.csv", row.names = FALSE)
wide |> pivot_longer(-site) |> count(name, missing = is.na(value)) |> as.data.frame()
