-- pace_keys: when each candidate of a partition with a rate or a cooldown may run: NULL for now, else its place in time.
-- Whoever was given a place before comes first, with what the bucket has. The others go to the end of the line as long as
-- there is one, so that none of them takes the token of somebody whose place has come.
-- Parameters: keys and placed (whether run_at is a place given before) of the candidates, in order; rate_keys, tokens,
-- cool_untils, spread_untils, parallel, of the partitions; step, the distance of two places; at, the time of the claim.
-- A function of arrays alone, for the reason that pair_units gives. Index, locks: none.
create or replace function pace_keys(
  keys text[], placed boolean[], rate_keys text[], tokens double precision[], cool_untils timestamptz[],
  spread_untils timestamptz[], step interval, at timestamptz
) returns timestamptz[]
language sql immutable
set enable_hashjoin = on
as $$ /* outhaul:pace_keys */
  select array_agg(
           case when c.k is null or r.k is null
                  or (r.cool <= pace_keys.at and c.place <= floor(r.tokens) and (c.placed or r.spread <= pace_keys.at)) then null
                when c.placed then greatest(r.cool, pace_keys.at) + pace_keys.step * (c.place - least(floor(r.tokens), c.place - 1))
                else greatest(r.spread, r.cool, pace_keys.at) + pace_keys.step * (c.arrival
                       - case when greatest(r.spread, r.cool) <= pace_keys.at then least(floor(r.tokens), c.arrival - 1) else 0 end) end
           order by c.o)
    from (select k, p as placed, o, row_number() over (partition by k order by not p, o) as place,
                 row_number() over (partition by k, p order by o) as arrival
            from unnest(pace_keys.keys, pace_keys.placed) with ordinality x(k, p, o)) c
    left join unnest(pace_keys.rate_keys, pace_keys.tokens, pace_keys.cool_untils, pace_keys.spread_untils) r(k, tokens, cool, spread)
      on r.k = c.k
$$;
