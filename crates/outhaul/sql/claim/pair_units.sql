-- pair_units: which unit each candidate gets, NULL for none. Candidates of one key are served in their order.
-- Parameters: keys, of the candidates in order, NULL where no limit holds; unit_keys and units, parallel.
-- A function of arrays alone, so that these joins may hash while nothing that reads jobs does. Index, locks: none.
create or replace function pair_units(keys text[], unit_keys text[], units integer[]) returns integer[]
language sql immutable
set enable_hashjoin = on
as $$ /* outhaul:pair_units */
  select array_agg(u.n order by c.o)
    from (select k, o, row_number() over (partition by k order by o) as place
            from unnest(pair_units.keys) with ordinality x(k, o)) c
    left join (select k, n, row_number() over (partition by k order by n) as place
                 from unnest(pair_units.unit_keys, pair_units.units) x(k, n)) u
      on u.k = c.k and u.place = c.place
$$;
