# Julia loads this before the script. While BELLJAR_GATE is set there is no
# script yet: what scripts usually call is compiled, and then the FIFO of that
# name is read to its end, which comes once the script is there.
#
# Nothing is defined here: the script finds Main as Julia makes it, and the
# numbers that Julia gives to functions without a name begin where they do
# otherwise. Those of gensym do not.
let gate = pop!(ENV, "BELLJAR_GATE", "")
    if gate != ""
        preload = Module(:Preload)
        try
            Base.include(preload, joinpath(@__DIR__, "preload.jl"))
        catch
            # It costs time, not the script.
        end
        GC.gc()
        read(gate)
        # Numbers that another start would have as well.
        Base.include_string(preload, "import Random; Random.seed!()")
    end
end
