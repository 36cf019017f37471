library(jsonlite)

config <- fromJSON("input/config.json")
str(config)
config$runs$mean <- vapply(config$runs$values, mean, 0)
write_json(config, "output/result.json", auto_unbox = TRUE, digits = 4, pretty = TRUE)
cat(toJSON(list(a = 1:3, b = "x", c = NULL, d = NA), auto_unbox = TRUE), "\n")
stopifnot(identical(fromJSON("[1,2]"), 1:2))
tryCatch(fromJSON("{broken"), error = function(e) cat("refused:", sub(":.*", "", conditionMessage(e)), "\n"))
