f <- function(x) warning("in f")
invisible(f(1))
as.numeric("q")
for (i in 1:2) warning("w", i)
message("to stderr")
withCallingHandlers(
  warning("seen"),
  warning = function(w) {
    cat("caught", conditionMessage(w), "\n")
    invokeRestart("muffleWarning")
  }
)
.Last <- function() cat("last\n")
quit(status = 3)
