fit <- lm(mpg ~ wt + hp, data = mtcars)
print(round(coef(fit), 5))
cat("r2", round(summary(fit)$r.squared, 5), "\n")
anova(fit)
growth <- nls(weight ~ SSlogis(Time, Asym, xmid, scal), subset(ChickWeight, Chick == 1))
cat("asymptote", round(coef(growth)[["Asym"]], 2), "\n")
t.test(extra ~ group, data = sleep, var.equal = TRUE)$p.value
optimize(function(x) (x - 1 / 3)^2, c(0, 1))$minimum
integrate(dnorm, -1.96, 1.96)
prcomp(USArrests, scale. = TRUE)
eigen(matrix(c(2, 1, 1, 3), 2))$values
cutree(hclust(dist(c(1, 2, 10, 11))), 2)
glm(am ~ wt, binomial, mtcars)
