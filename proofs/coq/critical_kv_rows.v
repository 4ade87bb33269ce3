(* CriticalKV's statements about many rows of attention weights (proofs/critical_kv.md): the queries of a window, the
   heads of a group or of a layer; and about what is chosen among many selections. *)
From mathcomp Require Import all_ssreflect all_algebra ring.
From kvbound Require Import seminorm exchange critical_kv.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

Section Rows.
Variables (R : realFieldType) (E : lmodType R) (N : seminorm E).
Variables (rows I : finType) (A : rows -> I -> R) (V : rows -> I -> E).
Hypothesis A_ge0 : forall r i, 0 <= A r i.
Hypothesis A_total : forall r, \sum_i A r i = 1.

(* ckv-window: Let every row have at least the mass least in stage one F. The rows' perturbations by one kept set then
   add up to at most a bound that depends on sums over the rows alone; if least is at least 1/2, a stage two of largest
   sums has the smallest bound of its size. *)
Theorem ckv_window (F : {set I}) (least : R) :
  0 < least -> (forall r, least <= mass (A r) F) ->
  let T j := \sum_r A r j * N (V r j) in
  let bound (K : {set I}) := \sum_j T j - coefficient least * \sum_(j in K) T j in
  (forall K : {set I}, F \subset K -> \sum_r perturbation N (A r) (V r) K <= bound K) /\
  (2%:R^-1 <= least -> forall S S' : {set I},
     is_top T (~: F) S -> S' \subset ~: F -> #|S'| = #|S| -> bound (F :|: S) <= bound (F :|: S')).
Proof.
move=> least_gt0 at_least T bound; split=> [K F_K|half S S' top S'_out same].
  have -> : bound K = \sum_r (total_norm_mass N (A r) (V r) - coefficient least * norm_mass N (A r) (V r) K).
    rewrite sumrB -mulr_sumr /bound /T; congr (_ - _ * _); first by rewrite exchange_big.
    by rewrite exchange_big.
  apply: ler_sum => r _; have F_le := at_least r.
  have le_K : least <= mass (A r) K by apply: le_trans F_le _; exact: mass_subset.
  apply: (@le_trans _ _ (theta N (A r) (V r) K)).
    by apply: ckv_3_3 => //; exact: lt_le_trans least_gt0 le_K.
  rewrite ler_add2l ler_opp2; apply: ler_wpmul2r; first exact: norm_mass_ge0.
  exact: coefficient_monotone.
rewrite ler_add2l ler_opp2; apply: ler_wpmul2l; first exact: coefficient_ge0.
rewrite !sum_disjoint ?disjoint_outside ?(proj1 top) // ler_add2l.
exact: exchange top _ _.
Qed.

(* ckv-layer: Whatever each head keeps, as long as its kept mass is positive, the layer's output changes by at most the
   sum of the heads' theta. *)
Theorem ckv_layer (kept : rows -> {set I}) :
  (forall h, 0 < mass (A h) (kept h)) ->
  N (\sum_h (output (A h) (V h) - compressed (A h) (V h) (kept h))) <= \sum_h theta N (A h) (V h) (kept h).
Proof.
move=> kept_gt0; apply: le_trans (norm_sum _ _ _) _.
by apply: ler_sum => h _; exact: ckv_3_3.
Qed.

(* ckv-adaptive-alpha: Let a row be served by a prefix of the ranking if the always kept entries and the prefix hold
   more than half of its mass. If each row is served by some prefix of at most k entries, the longest of their shortest
   ones is the shortest prefix that serves all rows. A row without one is served by no prefix. *)
Theorem ckv_adaptive_alpha (always : {set I}) (ranked : seq I) :
  let k := size ranked in
  let serves r s := 2%:R^-1 < mass (A r) (always :|: [set i in take s ranked]) in
  let shortest r := find (serves r) (iota 0 k.+1) in
  ((forall r, (shortest r <= k)%N) ->
     (forall r, serves r (\max_q shortest q)%N) /\
     forall s, (s <= k)%N -> (forall r, serves r s) -> (\max_q shortest q <= s)%N) /\
  forall r, (k < shortest r)%N -> forall s, (s <= k)%N -> ~~ serves r s.
Proof.
move=> k serves shortest.
have monotone r s t : (s <= t)%N -> serves r s -> serves r t.
  move=> s_t; rewrite /serves => half; apply: lt_le_trans half _; apply: mass_subset => //.
  apply: setUS; apply/subsetP => i; rewrite !inE => in_s.
  by rewrite -(subnKC s_t) takeD mem_cat in_s.
have nth_k s : (s <= k)%N -> nth 0%N (iota 0 k.+1) s = s by move=> s_k; rewrite nth_iota.
have first_serves r : (shortest r <= k)%N -> serves r (shortest r).
  move=> le_k; have := @nth_find _ 0%N (serves r) (iota 0 k.+1).
  by rewrite has_find size_iota ltnS le_k nth_k //; apply.
have none_before r s : (s <= k)%N -> serves r s -> (shortest r <= s)%N.
  move=> s_k; apply: contraTT; rewrite -ltnNge => /(before_find 0%N).
  by rewrite nth_k // => ->.
split=> [all|r none s s_k]; last first.
  by apply/negP => /(none_before r s s_k) le_s; move: none; rewrite ltnNge (leq_trans le_s s_k).
split=> [r|s s_k all_s]; first by apply: monotone (first_serves r (all r)); exact: leq_bigmax.
by apply/bigmax_leqP => r _; exact: none_before.
Qed.
End Rows.

Section Sweep.
Variables (R : realFieldType) (E : lmodType R) (N : seminorm E).
Variables (I : finType) (A : I -> R) (V : I -> E).
Hypothesis A_ge0 : forall i, 0 <= A i.
Hypothesis A_total : \sum_i A i = 1.

(* ckv-theta-sweep: What has the smallest bound of finitely many selections has at most that of each. For one head, a
   larger kept mass and norm mass give a smaller theta if the kept mass is then at least 1/2; and the selection of
   largest A (lambda + n) has the largest lambda times kept mass plus norm mass. *)
Theorem ckv_theta_sweep :
  [/\ forall (selections : finType) (first : selections) (bound : selections -> R),
        forall other, bound [arg min_(s < first) bound s]%O <= bound other,
      forall K K' : {set I},
        0 < mass A K -> mass A K <= mass A K' -> norm_mass N A V K <= norm_mass N A V K' ->
        2%:R^-1 <= mass A K' -> theta N A V K' <= theta N A V K &
      forall (lambda : R) (always T T' : {set I}),
        is_top (fun i => A i * (lambda + N (V i))) (~: always) T -> T' \subset ~: always -> #|T'| = #|T| ->
        lambda * mass A (always :|: T') + norm_mass N A V (always :|: T') <=
        lambda * mass A (always :|: T) + norm_mass N A V (always :|: T)].
Proof.
split=> [selections first bound other|K K'|lambda always T T' top T'_out same].
- by case: Order.TotalTheory.arg_minP => // least _; exact.
- exact: theta_of_larger_masses.
have by_sum (P : {set I}) : P \subset ~: always -> lambda * mass A (always :|: P) + norm_mass N A V (always :|: P) =
    (lambda * mass A always + norm_mass N A V always) + \sum_(i in P) A i * (lambda + N (V i)).
  move=> P_out; rewrite /mass /norm_mass !sum_disjoint ?disjoint_outside //.
  have -> : \sum_(i in P) A i * (lambda + N (V i)) =
      lambda * (\sum_(i in P) A i) + \sum_(i in P) A i * N (V i).
    by rewrite mulr_sumr -big_split /=; apply: eq_bigr => i _; ring.
  ring.
rewrite !by_sum ?(proj1 top) // ler_add2l.
exact: exchange top _ _.
Qed.
End Sweep.
