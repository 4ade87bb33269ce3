(* Top-m sets: of all sets of m candidates, the one of largest scores has the largest sum of scores. *)
From mathcomp Require Import all_ssreflect all_algebra.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

Lemma disjoint_outside (I : finType) (F S : {set I}) : S \subset ~: F -> [disjoint F & S].
Proof. by rewrite disjoint_sym disjoints_subset. Qed.

Section Exchange.
Variables (R : realFieldType) (I : finType) (x : I -> R).

(* T holds candidates of largest x: no candidate outside T has a larger one than any in T. *)
Definition is_top (candidates T : {set I}) :=
  T \subset candidates /\
  forall i j, i \in T -> j \in candidates -> j \notin T -> x j <= x i.

Lemma exchange (candidates T T' : {set I}) :
  is_top candidates T -> T' \subset candidates -> #|T'| = #|T| -> \sum_(i in T') x i <= \sum_(i in T) x i.
Proof.
move=> [_ top] sub same_size.
rewrite (big_setID T) [X in _ <= X](big_setID T') /= setIC ler_add2l.
have same_rest : #|T' :\: T| = #|T :\: T'|.
  apply/eqP; rewrite -(eqn_add2l #|T' :&: T|) cardsID same_size.
  by rewrite setIC cardsID.
have [empty | [i0 i0_in]] := set_0Vmem (T :\: T').
  have := same_rest; rewrite empty cards0 => /eqP.
  by rewrite cards_eq0 => /eqP ->; rewrite !big_set0.
have [least least_in is_least] := arg_minP (P := [pred i | i \in T :\: T']) x i0_in.
have least_T : least \in T by move: least_in; rewrite !inE => /andP[].
apply: (@le_trans _ _ (x least *+ #|T' :\: T|)).
  rewrite -sumr_const; apply: ler_sum => j; rewrite inE => /andP[j_out j_in].
  by apply: top => //; apply: (subsetP sub).
by rewrite same_rest -sumr_const; apply: ler_sum => j j_in; apply: is_least.
Qed.
End Exchange.
