scale_all <- function(v) {
  sapply(v, function(i) {
    if (i < 0)
      stop("negative: ", i)
    sqrt(i)
  })
}

on_exit <- function() {
  on.exit(cat("cleaned up\n"))
  scale_all(c(4, -1))
}

print(scale_all(c(1, 4)))
tryCatch(scale_all(-2), error = function(e) cat("handled:", conditionMessage(e), "\n"))
try(log("a"), silent = TRUE)
on_exit()
cat("not reached\n")
