# Values at top level print as Rscript prints them.
x <- c(a = 1, b = 2.5, c = NA)
x
summary(x)
invisible(3)
NULL
f <- function(n) {
  # a comment that is not printed
  n + 1
}
f
factor(c("low", "high", "low"), levels = c("low", "high"))
list(1, name = "two", c(TRUE, FALSE))
matrix(1:6, 2, dimnames = list(NULL, c("x", "y", "z")))
head(mtcars, 2)
str(list(a = 1:3, b = "c"))
as.Date("2024-02-28") + 2
format(1234567.891, big.mark = ",")
if (FALSE) 1
for (i in 1:2) i
(function() "called")()
print(1:20)
set.seed(42)
round(rnorm(3), 6)
sample(10)
table(c("a", "b", "a"))
