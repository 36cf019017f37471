#!/bin/sh
# grass: WGS84
g.region -p
