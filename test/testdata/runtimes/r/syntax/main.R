cat("what comes before it runs\n")
if (TRUE) {
  x <- 1
  y y
}
cat("never\n")
