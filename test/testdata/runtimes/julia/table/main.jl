# Reads a table, groups it, and writes another.
using DelimitedFiles, Dates, Statistics

rows, header = readdlm("input/stations/rain.csv", ',', header=true)
println(join(header, "|"), " ", size(rows))
by_station = Dict{String,Vector{Float64}}()
for (station, date, mm) in eachrow(rows)
    push!(get!(by_station, station, Float64[]), mm)
end
open("output/summary.csv", "w") do io
    println(io, "station,days,total,mean")
    for station in sort(collect(keys(by_station)))
        mm = by_station[station]
        println(io, join((station, length(mm), round(sum(mm), digits=1), round(mean(mm), digits=2)), ","))
    end
end
days = Date.(string.(rows[:, 2]))
println("from ", minimum(days), " to ", maximum(days), ", a ", dayname(minimum(days)))
wet = [string(r[1], "@", r[2]) for r in eachrow(rows) if r[3] > 10]
println(wet)
println(occursin(r"^[A-Z]\w+$", rows[1, 1]), " ", uppercase(replace(rows[1, 1], "a" => "4")))
