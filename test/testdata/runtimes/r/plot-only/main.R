plot(1:10, (1:10)^2, main = "Squares", xlab = "n")
hist(c(1, 2, 2, 3, 3, 3), main = "Counts")
cat("drawn\n")
