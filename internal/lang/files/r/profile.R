# Belljar's start of R, in the place of the user's profile. An error that
# nothing handles tells its line. With BELLJAR_GATE set, R waits for the script
# once it has started, and with BELLJAR_PRELOAD set it loads libraries first.

local({
  gate <- Sys.getenv("BELLJAR_GATE")
  preload <- nzchar(Sys.getenv("BELLJAR_PRELOAD"))
  Sys.unsetenv(c("R_PROFILE_USER", "BELLJAR_GATE", "BELLJAR_PRELOAD"))

  for (profile in c(".Rprofile", "~/.Rprofile")) {
    if (file.exists(profile)) {
      sys.source(profile, globalenv())
      break
    }
  }

  here <- environment()
  for (file in c("errors.R", if (nzchar(gate)) "early.R")) {
    sys.source(file.path("/belljar/lib/r", file), new.env(parent = here))
  }
})
