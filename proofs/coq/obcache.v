(* OBCache's statements (proofs/obcache.md) that are algebra: what zeroing a value, removing entries and zeroing a slot
   do to the output, over any real field and in any seminorm. *)
From mathcomp Require Import all_ssreflect all_algebra ring.
From kvbound Require Import seminorm exponential critical_kv.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

Section Combinations.
Variables (R : realFieldType) (E : lmodType R).

(* From o = s + q rest, where q = 1 - a is not 0. *)
Lemma rest_from_output (a : R) (o s rest : E) :
  1 - a != 0 -> o = s + (1 - a) *: rest ->
  rest - o = (1 - a)^-1 *: (a *: o - s) /\ rest - o = a *: rest - s.
Proof.
move=> q0 o_by; have second : rest - o = a *: rest - s.
  by rewrite o_by scalerBl scale1r opprD opprB addrCA [rest + _]addrC subrK addrC.
split=> //; apply: (scalerI q0); rewrite scalerA mulfV // scale1r.
have -> : a *: o - s = o - s - (1 - a) *: o by rewrite scalerBl scale1r opprB [RHS]addrC addrA subrK.
have -> : o - s = (1 - a) *: rest by rewrite o_by addrAC subrr add0r.
exact: scalerBr.
Qed.

Lemma cauchy (I : finType) (a : I -> R) : (\sum_i a i) ^+ 2 <= #|I|%:R * \sum_i a i ^+ 2.
Proof.
have pairs : 0 <= \sum_i \sum_j (a i - a j) ^+ 2.
  by apply: sumr_ge0 => i _; apply: sumr_ge0 => j _; exact: sqr_ge0.
have one i : \sum_j (a i - a j) ^+ 2 = #|I|%:R * a i ^+ 2 - (a i * \sum_j a j) *+ 2 + \sum_j a j ^+ 2.
  under eq_bigr do rewrite sqrrB.
  by rewrite big_split sumrB /= sumr_const -[a i ^+ 2 *+ _]mulr_natl sumrMnl -mulr_sumr.
move: pairs; under eq_bigr do rewrite one.
rewrite big_split sumrB /= -mulr_sumr sumrMnl -mulr_suml sumr_const -[(\sum_j a j ^+ 2) *+ _]mulr_natl.
rewrite -expr2 addrAC -mulr2n -mulrnBl pmulrn_lge0 // subr_ge0; exact.
Qed.
End Combinations.

Section Removal.
Variables (R : realFieldType) (E : lmodType R) (N : seminorm E).
Variables (I : finType) (A : I -> R) (V : I -> E).
Hypothesis A_ge0 : forall i, 0 <= A i.
Hypothesis A_total : \sum_i A i = 1.

Notation o := (output A V).
Definition without (S : {set I}) := \sum_(i in ~: S) (A i / (1 - mass A S)) *: V i.

Lemma output_by (S : {set I}) :
  1 - mass A S != 0 -> o = \sum_(i in S) A i *: V i + (1 - mass A S) *: without S.
Proof.
move=> q0; rewrite /output (sum_by_set S) addrC; congr (_ + _).
by rewrite scaler_sumr; apply: eq_bigr => i _; rewrite scalerA mulrC divfK.
Qed.

Lemma mass_set1 p : mass A [set p] = A p.
Proof. by rewrite /mass big_set1. Qed.

(* obc-value: If the value of entry p is replaced by zero, the output changes by its weighted value, exactly. *)
Theorem obc_value (p : I) :
  let zeroed i := if i == p then 0 else V i in
  output A zeroed - o = - (A p *: V p) /\ N (output A zeroed - o) ^+ 2 = A p ^+ 2 * N (V p) ^+ 2.
Proof.
move=> zeroed; have change : output A zeroed - o = - (A p *: V p).
  rewrite /output (bigD1 p) //= [X in _ - X](bigD1 p) //= /zeroed eqxx scaler0 add0r.
  under eq_bigr => i i_p do rewrite (negbTE i_p).
  by rewrite opprD addrCA subrr addr0.
by split=> //; rewrite change norm_opp norm_scale exprMn real_normK ?num_real.
Qed.

(* obc-exact: Removing entry p, where others remain, moves the output by A times the others' output minus p's value; in
   norm, by A times the distance of the value from the others' output, or A / (1 - A) times that from the output. *)
Theorem obc_exact (p : I) : A p < 1 ->
  let rest := without [set p] in
  [/\ rest - o = A p *: (rest - V p),
      N (rest - o) = A p * N (V p - rest) &
      N (rest - o) = A p / (1 - A p) * N (V p - o)].
Proof.
move=> less rest; have q_gt0 : 0 < 1 - A p by rewrite subr_gt0.
have q0 : 1 - mass A [set p] != 0 by rewrite mass_set1 gt_eqF.
have := output_by q0; rewrite mass_set1 big_set1 => o_by.
have [first second] := rest_from_output (lt0r_neq0 q_gt0) o_by.
have by_rest : rest - o = A p *: (rest - V p) by rewrite scalerBr.
split=> //; first by rewrite by_rest norm_scale ger0_norm // -norm_opp opprB.
rewrite first -scalerBr !norm_scale ger0_norm ?invr_ge0 ?ltW // ger0_norm //.
by rewrite -norm_opp opprB mulrA [_^-1 * _]mulrC.
Qed.

(* obc-set: Removing a set S of positive mass, where others remain, moves the output by the weighted sum of the output's
   differences from its values, divided by 1 - A_S, which is A_S times the others' output minus its own; the norm is at
   most the sum of what removing each of S alone does, times (1 - A_j) / (1 - A_S). *)
Theorem obc_set (S : {set I}) : 0 < mass A S -> mass A S < 1 ->
  let rest := without S in
  let own := \sum_(j in S) (A j / mass A S) *: V j in
  [/\ rest - o = (1 - mass A S)^-1 *: \sum_(j in S) A j *: (o - V j),
      rest - o = mass A S *: (rest - own) &
      N (rest - o) <= \sum_(j in S) (1 - A j) / (1 - mass A S) * N (without [set j] - o)].
Proof.
move=> some less rest own; have q_gt0 : 0 < 1 - mass A S by rewrite subr_gt0.
have q0 := lt0r_neq0 q_gt0; have [first second] := rest_from_output q0 (output_by q0).
have sum_by : \sum_(j in S) A j *: (o - V j) = mass A S *: o - \sum_(j in S) A j *: V j.
  by rewrite scaler_suml -sumrB; apply: eq_bigr => j _; rewrite scalerBr.
have by_sum : rest - o = (1 - mass A S)^-1 *: \sum_(j in S) A j *: (o - V j) by rewrite sum_by.
split=> //.
  rewrite second scalerBr; congr (_ - _); rewrite /own scaler_sumr; apply: eq_bigr => j _.
  by rewrite scalerA mulrC divfK // gt_eqF.
rewrite by_sum norm_scale ger0_norm; last by rewrite invr_ge0 ltW.
apply: (@le_trans _ _ ((1 - mass A S)^-1 * \sum_(j in S) `|A j| * N (o - V j))).
  by apply: ler_wpmul2l; [rewrite invr_ge0 ltW | exact: norm_combination].
rewrite mulr_sumr; apply: ler_sum => j j_S; rewrite ger0_norm //.
have A_j : A j < 1.
  apply: le_lt_trans less; rewrite -mass_set1; apply: mass_subset => //.
  by rewrite sub1set.
have [_ _ ->] := obc_exact A_j.
have q_j : 1 - A j != 0 by rewrite gt_eqF // subr_gt0.
have -> : N (o - V j) = N (V j - o) by rewrite -norm_opp opprB.
rewrite le_eqVlt; apply/orP; left; apply/eqP; move: (N _) => distance.
by field; rewrite q0 q_j.
Qed.
End Removal.

(* obc-zeroing: If key and value of entry p are zeroed and its slot is kept, so that its exponential becomes 1, the
   output changes as follows; r is one over the sum of all exponentials, q is 1 - A + r, and L the logarithm of the sum
   of the others' exponentials. Where there are no others it becomes 0. *)
Theorem obc_zeroing (R : realFieldType) (E : lmodType R) (I : finType) (exponential_of : I -> R) (V : I -> E) (p : I) :
  let total := \sum_i exponential_of i in
  let A i := exponential_of i / total in
  let others := \sum_(i in ~: [set p]) exponential_of i in
  let o := output A V in
  let zeroed := \sum_(i in ~: [set p]) (exponential_of i / (others + 1)) *: V i in
  let rest := without A V [set p] in
  let r := total^-1 in let q := 1 - A p + r in
  (forall i, 0 < exponential_of i) ->
  (others = 0 -> zeroed = 0) /\
  (others != 0 ->
  [/\ zeroed - o = q^-1 *: ((A p - r) *: o - A p *: V p),
      zeroed = ((1 - A p) / q) *: rest,
      o - zeroed = (A p * (1 - A p) / q) *: (V p - rest) + (r / q) *: o &
      forall (e : exponential R) L, e L = others -> (1 - A p) / q = (1 + e (- L))^-1 /\ r / q = (1 + e L)^-1]).
Proof.
move=> total A others o zeroed rest r q positive; split=> [none | some].
  have /eqP := none; rewrite psumr_eq0 => [/allP none_in|i _]; last exact: ltW.
  rewrite /zeroed big1 // => i i_in; have := none_in i (mem_index_enum _); rewrite i_in gt_eqF //.
have total_by : total = others + exponential_of p.
  by rewrite /total (sum_by_set [set p]) big_set1.
have others_ge0 : 0 <= others by apply: sumr_ge0 => i _; apply/ltW/positive.
have total_gt0 : 0 < total by rewrite total_by ltr_paddl.
have total0 : others + exponential_of p != 0 by rewrite -total_by lt0r_neq0.
have more0 : others + 1 != 0 by rewrite lt0r_neq0 // ltr_paddl // ltr01.
have A_p : A p = exponential_of p / (others + exponential_of p) by rewrite /A total_by.
have q_by : q = (others + 1) / (others + exponential_of p).
  by rewrite /q /r A_p total_by; field; exact: total0.
have one_less : 1 - A p = others / (others + exponential_of p) by rewrite A_p; field; exact: total0.
have less0 : 1 - mass A [set p] != 0.
  by rewrite mass_set1 one_less mulf_neq0 // invr_neq0.
have by_rest : zeroed = ((1 - A p) / q) *: rest.
  rewrite /zeroed /rest /without scaler_sumr; apply: eq_bigr => i _; rewrite scalerA mass_set1.
  congr (_ *: _); rewrite one_less q_by /A total_by; field.
  by rewrite total0 more0 some.
have o_by : o = A p *: V p + (1 - A p) *: rest.
  by have := output_by V less0; rewrite mass_set1 big_set1.
have q0 : q != 0 by rewrite q_by mulf_neq0 // invr_neq0.
have logistic (e : exponential R) L : e L = others -> (1 - A p) / q = (1 + e (- L))^-1 /\ r / q = (1 + e L)^-1.
  move=> at_L; rewrite one_less q_by /r total_by exp_opp at_L.
  by split; field; rewrite ?some ?more0 total0 // addrC more0.
split=> //.
  rewrite by_rest o_by; apply: (scalerI q0); rewrite scalerA mulfV // scale1r.
  rewrite scalerBr scalerA [q * _]mulrC divfK //.
  have -> : A p - r = 1 - q by rewrite /q; ring.
  rewrite [(1 - q) *: _]scalerBl scale1r addrAC; congr (_ - _).
  by rewrite addrAC subrr add0r.
rewrite by_rest o_by scalerBr !scalerDr !scalerA.
have -> : A p *: V p + (1 - A p) *: rest - ((1 - A p) / q) *: rest =
    A p *: V p + ((1 - A p) - (1 - A p) / q) *: rest by rewrite -addrA -scalerBl.
rewrite -scalerN addrACA -scalerDl; congr (_ *: _ + _).
  by rewrite /q in q0 *; field.
rewrite scalerN -scaleNr -scalerDl; congr (_ *: _).
by rewrite /q in q0 *; field.
Qed.

(* obc-shift: Weights, and with them all scores that are functions of weights and values, do not change if a constant
   is added to all logits: if all exponentials are multiplied by one number. *)
Theorem obc_shift (R : realFieldType) (I : finType) (exponential : I -> R) (factor : R) :
  factor != 0 -> forall i, exponential i * factor / (\sum_j exponential j * factor) =
                           exponential i / (\sum_j exponential j).
Proof. by move=> nonzero i; rewrite -mulr_suml invfM mulrACA divff // mulr1. Qed.

(* The squared change of a sum over H heads is at most H times the sum of the squared changes of each. *)
Lemma layer_change (R : realFieldType) (E : lmodType R) (N : seminorm E) (heads queries : finType)
    (change : queries -> heads -> E) :
  \sum_i N (\sum_h change i h) ^+ 2 <= #|heads|%:R * \sum_i \sum_h N (change i h) ^+ 2.
Proof.
rewrite mulr_sumr; apply: ler_sum => i _; apply: le_trans (cauchy _).
by rewrite ler_sqr ?nnegrE ?norm_ge0 ?norm_sum //; apply: sumr_ge0 => h _; exact: norm_ge0.
Qed.

(* obc-special: With equal value norms, one query's squared weights rank as its weights do. Over w queries the sum of
   squares is at most the squared sum, and that is at most w times the sum of squares; so an entry is ranked no lower by
   squares if no query gives it less weight, or if its squared sum is at least w times the other's. *)
Theorem obc_special (R : realFieldType) (queries : finType) (norm : R) (a b : queries -> R) :
  0 < norm -> (forall i, 0 <= a i) -> (forall i, 0 <= b i) ->
  let squares (f : queries -> R) := \sum_i f i ^+ 2 in
  [/\ forall i, ((a i * norm) ^+ 2 <= (b i * norm) ^+ 2) = (a i <= b i),
      (\sum_i a i) ^+ 2 <= #|queries|%:R * squares a /\ squares a <= (\sum_i a i) ^+ 2,
      (forall i, a i <= b i) -> squares a <= squares b &
      #|queries|%:R * (\sum_i a i) ^+ 2 <= (\sum_i b i) ^+ 2 -> (0 < #|queries|)%N ->
        squares a <= squares b].
Proof.
move=> norm_gt0 a_ge0 b_ge0 squares.
have at_most (f : queries -> R) : (forall i, 0 <= f i) -> squares f <= (\sum_i f i) ^+ 2.
  move=> f_ge0; rewrite [X in _ <= X]expr2 mulr_suml; apply: ler_sum => i _.
  rewrite expr2; apply: ler_wpmul2l => //; rewrite (bigD1 i) //= ler_addl.
  by apply: sumr_ge0.
split=> [i|||].
- by rewrite !exprMn ler_pmul2r ?exprn_gt0 // ler_sqr ?nnegrE.
- by split; [exact: cauchy | exact: at_most].
- by move=> le_ab; apply: ler_sum => i _; rewrite ler_sqr ?nnegrE.
move=> w_times some; apply: le_trans (at_most _ a_ge0) _.
have w_gt0 : 0 < #|queries|%:R :> R by rewrite ltr0n.
by rewrite -(ler_pmul2l w_gt0); apply: le_trans w_times (cauchy _).
Qed.
