# Tells the line of an error. Scripts run without srcrefs, which would change
# how functions print, so the script is parsed anew for it.

script <- sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE))

# done counts the expressions of the script that ran.
done <- 0L

# The statements in which the call stands, as their first and last lines. The
# script is given without source references, so that its calls can be compared,
# and with them.
statements <- function(call, plain, located, lines = NULL) {
  if (identical(plain, call)) return(list(lines))
  if (!is.call(plain) && !is.expression(plain)) return()
  own <- lapply(attr(located, "srcref"), function(s) as.integer(s)[c(1L, 3L)])
  found <- list()
  for (i in seq_along(plain)) {
    if (identical(plain[[i]], quote(expr = ))) next # an argument left out
    found <- c(found, statements(call, plain[[i]], located[[i]], if (i <= length(own)) own[[i]] else lines))
  }
  unique(found)
}

# The line of a statement where the call begins, if its name stands on one.
line_in <- function(lines, call, text) {
  name <- if (is.name(call[[1L]])) as.character(call[[1L]]) else ""
  on <- grep(paste0(name, "("), text[lines[1L]:lines[2L]], fixed = TRUE)
  lines[1L] + if (length(on) == 1L) on - 1L else 0L
}

# The lines where the script failed, the innermost first.
failed_at <- function(e, calls, text) {
  located <- parse(text = text, keep.source = TRUE)
  plain <- parse(text = text, keep.source = FALSE)
  refs <- attr(located, "srcref")
  n <- min(done + 1L, length(located))
  # The call of an error in C is on no stack.
  if (!list(conditionCall(e)) %in% as.list(calls)) calls <- c(calls, conditionCall(e))
  for (call in rev(calls)) {
    # In the expression that runs, else in a function defined before.
    for (part in list(n, seq_len(n))) {
      found <- statements(call, plain[part], structure(located[part], srcref = refs[part]))
      if (length(found) == 1L) return(unique(c(line_in(found[[1L]], call, text), refs[[n]][[1L]])))
    }
  }
  refs[[n]][[1L]]
}

# All that parses before a syntax error.
sound <- function(text) {
  for (n in rev(seq_along(text))) {
    if (!inherits(try(parse(text = text[seq_len(n)]), silent = TRUE), "try-error")) break
  }
  text[seq_len(n)]
}

where <- function(e, calls) {
  text <- readLines(script, warn = FALSE)
  broken <- tryCatch({ parse(script, keep.source = FALSE); NULL }, error = conditionMessage)
  if (!is.null(broken)) {
    what <- sub("^[^\n]*?:[0-9]+:[0-9]+: ([^\n]*).*", "\\1", broken)
    if (grepl(what, conditionMessage(e), fixed = TRUE)) return(broken)
    text <- sound(text)
  }
  lines <- failed_at(e, calls, text)
  paste0(script, ", line ", lines, ": ", trimws(substr(text[lines], 1, 200)))
}

if (length(script) == 1L && exists("globalCallingHandlers", baseenv())) {
  globalCallingHandlers(error = function(e) {
    calls <- sys.calls()
    try(writeLines(where(e, calls), stderr()), silent = TRUE)
  })
  addTaskCallback(function(...) {
    done <<- done + 1L
    TRUE
  })
}
